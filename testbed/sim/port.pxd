from testbed.sim.frame cimport Frame, Frames, Queue
from testbed.sim.loop cimport Event, Loop
from testbed.sim.mix cimport Draws
from transport.clock cimport transmit_time

cdef long long CE
cdef long long NOT_ECT

cdef class Node:
    cpdef object arrive(self, Frame frame, long long now, object ingress)

cdef class Pool:
    cdef public long long size
    cdef public long long alpha
    cdef public long long used

cdef class Link(Event):
    cdef public Loop loop
    cdef public Frames frames
    cdef public Node node
    cdef public long long delay
    cdef public Draws draws
    cdef public long long loss
    cdef public bint up
    cdef public long long lost
    cdef public Queue queue
    cdef public long long last
    cdef public object ingress
    cpdef object carry(self, Frame frame, long long arrives)

cdef class Waiting:
    cpdef object drained(self, long long now)

cdef class Port(Event):
    cdef public Loop loop
    cdef public Frames frames
    cdef public Link link
    cdef public Draws draws
    cdef public long long rate
    cdef public long long byte_time
    cdef public Queue data
    cdef public Queue control
    cdef public long long free_at
    cdef public bint paused
    cdef public long long paused_at
    cdef public long long paused_for
    cdef public long long pauses
    cdef public long long limit
    cdef public long long control_limit
    cdef public bint trim
    cdef public long long ecn_low
    cdef public long long ecn_high
    cdef public bint cut_through
    cdef public bint stamp
    cdef public Pool pool
    cdef public Waiting host
    cdef public long long packets
    cdef public long long control_packets
    cdef public long long bytes
    cdef public long long marked
    cdef public long long trimmed
    cdef public long long dropped
    cdef public long long control_dropped
    cdef public long long peak
    cpdef object set_rate(self, long long rate)
    cpdef object send(self, Frame frame, long long now)
    cpdef object pause(self, long long now, bint stop)
    cpdef long long backlog(self, long long now)
    cdef bint _fits(self, long long size)
    cdef bint _trimmed(self, Frame frame)
    cdef object _enter_control(self, Frame frame, long long now)
    cdef object _transmit(self, Frame frame, long long now)
    cdef bint _marks(self)
