cdef class Event:
    cdef public long long when
    cdef public unsigned long long key
    cdef public long long place
    cpdef object fire(self, long long now)

cdef class Loop:
    cdef public long long now
    cdef public long long fired
    cdef public bint halted
    cdef public list heap
    cdef public unsigned long long draws
    cpdef object arm(self, Event event, long long when)
    cpdef object disarm(self, Event event)
    cpdef long long run(self, long long until, long long limit)
    cpdef long long next(self)
    cdef object _settle(self, Event event, long long place)
    cdef object _sink(self, Event event, long long place)
