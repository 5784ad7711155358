cdef long long NEVER

cdef class Timed:
    cdef public long long deadline
    cdef public long long scheduled
    cdef public long long ticket
    cdef public long long place
    cpdef object expire(self, long long now)

cdef class Source(Timed):
    cdef public bint queued
    cdef public Source following
    cpdef bint transmit(self, long long now, object out, long long limit)

cdef class Ready:
    cdef public long long count
    cdef public Source first
    cdef public Source last
    cpdef object push(self, Source source)
    cpdef Source pop(self)

cdef class Timers:
    cdef list heap
    cdef long long serial
    cpdef object arm(self, Timed timed, long long deadline)
    cpdef long long next(self)
    cpdef object run(self, long long now)
    cdef object _schedule(self, Timed timed)
    cdef object _drop(self, Timed timed)
    cdef object _settle(self, Timed timed, long long place)
    cdef object _put(self, Timed timed, long long place)

cdef bint _before(Timed one, Timed other)
