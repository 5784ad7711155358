from transport.paths cimport PathSet

cdef long long NEVER
cdef long long BAD
cdef long long GOOD
cdef long long PROBING
cdef long long SUSPECT
cdef long long _PER_RTT
cdef long long _MAX_OUTSTANDING
cdef long long _VOLLEY
cdef long long _PATIENCE
cdef long long _SILENT_RTTS
cdef long long _WALK_RTTS
cdef long long _WALK_STEP
cdef long long _ACTIVE_RTTS
cdef long long _LONGEST_HUSH
cdef long long _RECOVERY
cdef long long _FIRST_BACK_OFF
cdef long long _LAST_BACK_OFF

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
