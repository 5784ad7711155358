from transport.paths cimport PathSet

cdef class Prober:
    cdef public PathSet paths
    cdef public object rng
    cdef public dict outstanding
    cdef public list deadlines
    cdef public dict recovering
    cdef public list schedule
    cdef public bint witness
    cdef public long long silences
    cdef public long long silent_at
    cdef public long long pointer
    cdef public long long active_until
    cdef public long long next_at
    cdef public long long walk_at
    cdef public long long unknown_replies
    cpdef bint activity(self, long long now)
    cpdef long long next_timeout(self)
    cpdef object handle_timeout(self, long long now)
    cpdef long long poll(self, long long now)
    cdef long long _rtt(self)
