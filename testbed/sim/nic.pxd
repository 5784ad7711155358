from testbed.sim.frame cimport Frame, Frames
from testbed.sim.loop cimport Loop
from testbed.sim.port cimport Node, Port, Waiting
from transport.packet cimport Packet

cdef class Attachment:
    cdef public long long edge
    cdef public long long slot

cdef class HostPort(Waiting):
    cdef public long long number
    cdef public long long hosts
    cdef public Loop loop
    cdef public Frames frames
    cdef public list others
    cdef public Port port
    cdef public list inbox
    cdef public object on_arrival
    cdef public object on_room
    cdef public long long unreachable
    cdef public long long room
    cpdef bint send(self, Packet packet, long long now)
    cdef long long _number(self, bytes address)

cdef class Exit(Node):
    cdef public HostPort host
