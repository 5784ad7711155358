from transport.path cimport Path
from transport.selectors cimport Selector

cdef long long NEVER
cdef long long BAD
cdef long long DENIED
cdef long long GOOD
cdef long long SUSPECT
cdef long long _MARK_WEIGHT
cdef long long _SCATTER_WEIGHT
cdef long long _IN_USE
cdef long long _SAMPLES
cdef long long _MAX_EVENTS
cdef long long _GENEROUS
cdef long long _TRIES
cdef long long _BLAMES
cdef double _CONGESTED
cdef double _SCATTERED

cdef class PathSet:
    cdef public long long planes
    cdef public list paths
    cdef public list usable
    cdef public Selector selector
    cdef public object rng
    cdef public long long base_rtt
    cdef public long long floor
    cdef public object peer
    cdef public long long srtt
    cdef public long long rttvar
    cdef public long long min_rtt
    cdef public long long median_rtt
    cdef public long long spread_rtt
    cdef public double marked_fraction
    cdef public long long heard_at
    cdef public long long resumed_at
    cdef public long long congested_count
    cdef public list in_use
    cdef long long turn
    cdef public long long active_count
    cdef public long long active_congested
    cdef public double scatter
    cdef public long long generation
    cdef public object events
    cdef public long long events_dropped
    cdef public object wanting
    cdef public dict kept
    cdef public dict aside
    cdef long long samples
    cdef long long[::1] recent
    cdef long long[::1] sorted
    cpdef long long select(self, long long now, long long flow, long long avoid)
    cpdef long long loss_delay(self, long long index)
    cpdef long long delay_bound(self, long long index)
    cpdef bint slow_down(self)
    cpdef object delivered(self, long long now, long long index, long long size, long long packets, long long marked)
    cpdef bint sampled(self, long long now, long long index, long long rtt)
    cpdef object lost(self, long long index)
    cpdef object suspected(self, long long now, long long index)
    cpdef object doubted(self, long long now, long long index)
    cpdef object blamed(self, long long now, long long index)
    cpdef object want_probe(self, Path path)
    cpdef long long across(self, long long index, long long step)
    cdef Path _elsewhere(self, Path path, long long avoid)
    cdef bint _scattered(self)
    cdef object _use(self, Path path)
    cdef object _mark(self, Path path, double share)
    cdef object _set_congested(self, Path path, bint congested)
    cdef object _forget(self, Path path)
    cdef object _summarise(self, long long rtt)
    cdef object _include(self, Path path)
    cdef object _exclude(self, Path path)
    cdef object _refresh(self)
