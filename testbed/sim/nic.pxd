from testbed.sim.frame cimport Frame, Frames
from testbed.sim.loop cimport Loop
from testbed.sim.mix cimport mix
from testbed.sim.port cimport Node, Port, Waiting
from transport.packet cimport Packet

cdef long long HEADER_BYTES
cdef long long NEVER
cdef long long CLASS_CONTROL
cdef long long ROOM

cdef class Attachment:
    cdef public long long edge
    cdef public long long slot

cdef class Owner:
    cpdef object arrived(self, Packet packet, long long now)
    cpdef object room(self, long long now)

cdef class HostPort(Waiting):
    cdef public long long number
    cdef public long long hosts
    cdef public Loop loop
    cdef public Frames frames
    cdef public list others
    cdef public Port port
    cdef public list inbox
    cdef public Owner owner
    cdef public bytes address
    cdef public long long unreachable
    cdef public long long room
    cdef public bint one_class
    cpdef bint send(self, Packet packet, long long now)
    cdef long long _number(self, bytes address)

cdef class Exit(Node):
    cdef public HostPort host

cdef class SimNic:
    cdef public list ends
    cdef public tuple addresses
    cdef public bytes address
    cdef public object caps
    cdef public Loop loop
    cdef public list inbox
    cpdef long long carry(self, list packets, long long first, long long now)
    cdef HostPort _end_of(self, bytes address)
