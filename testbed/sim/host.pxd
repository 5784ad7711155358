from testbed.sim.loop cimport Event, Loop
from testbed.sim.nic cimport Owner, SimNic
from transport.endpoint cimport Endpoint
from transport.packet cimport Packet

cdef long long NEVER
cdef long long _BATCH
cdef long long _MOST

cdef class Timer(Event):
    cdef public Host host

cdef class Host(Owner):
    cdef public Loop loop
    cdef public SimNic ports
    cdef public object outer
    cdef public Endpoint endpoint
    cdef public object application
    cdef public Timer timer
    cdef public object on_done
    cdef public list unsent
    cdef long long taken
    cdef public long long next_post
    cdef public long long completed
    cdef public bint done
    cpdef object timeout(self, long long now)
    cpdef object wake(self, long long now)
    cpdef object begin(self, long long now)
    cdef object _settle(self, long long now, long long soonest)
    cdef object _take_in(self, long long now)
    cdef object _complete(self, long long now)
    cdef object _push(self, long long now)
