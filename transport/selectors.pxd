from transport.path cimport Path

cdef long long NEVER
cdef long long _PACKET
cdef long long _FREEZE_RTTS
cdef long long _DEPTH
cdef long long _MARKED
cdef long long _LOST
cdef long long _LATE
cdef long long _MOST

cdef class Selector:
    cdef public bint steers
    cdef public bint aware
    cdef public long long turns
    cdef public list paths
    cpdef long long choose(self, object usable, object rng, long long now, long long flow)
    cpdef object on_delivered(self, Path path, long long marked)
    cpdef object on_lost(self, Path path)
    cpdef object on_timeout(self, Path path, long long now, long long rtt)
    cpdef object on_usable(self, Path path)

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

cdef class Bitmap(Selector):
    cdef public long long penalised
    cdef public long long count
    cdef public long long left
    cdef public long long place
    cdef public long long stride
    cdef object _begin(self, long long count, object rng)
    cdef object _penalise(self, Path path, long long passes)

cdef class Mixed(Bitmap):
    cdef public object store
