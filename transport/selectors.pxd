from transport.path cimport Path

cdef class Selector:
    cdef public bint steers
    cdef public list paths
    cpdef long long choose(self, object usable, object rng, long long now, long long flow)
    cpdef object on_delivered(self, Path path, long long marked)
    cpdef object on_timeout(self, long long now, long long rtt)

cdef class Single(Selector):
    pass

cdef class RoundRobin(Selector):
    cdef public long long place

cdef class Random(Selector):
    pass

cdef class PowerOfTwo(Selector):
    pass

cdef class Reps(Selector):
    cdef public object store
    cdef public long long frozen_until
    cdef public bint thawing
