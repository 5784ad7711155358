from testbed.sim.mix cimport Draws

cdef long long NEVER
cdef long long _SMALLEST

cdef class Event:
    cdef public long long when
    cdef public bint armed
    cdef public long long number
    cpdef object fire(self, long long now)

cdef class Loop:
    cdef public long long now
    cdef public long long fired
    cdef public bint halted
    cdef Draws _draws
    cdef list _events
    cdef long long _size
    cdef bint _free
    cdef long long[::1] _whens
    cdef unsigned long long[::1] _keys
    cdef long long[::1] _numbers
    cdef long long[::1] _places
    cpdef object arm(self, Event event, long long when)
    cpdef object disarm(self, Event event)
    cpdef long long run(self, long long until, long long limit)
    cpdef long long next(self)
    cdef object _register(self, Event event)
    cdef object _close(self)
    cdef object _remove(self, long long place)
    cdef object _settle(self, long long when, unsigned long long key, long long number, long long place)
    cdef object _move(self, long long source, long long place)
