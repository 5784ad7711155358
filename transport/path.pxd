cdef class Path:
    cdef public long long index
    cdef public long long entropy
    cdef public long long plane
    cdef public long long state
    cdef public long long srtt
    cdef public long long rttvar
    cdef public long long min_rtt
    cdef public long long latest_rtt
    cdef public double ecn
    cdef public bint congested
    cdef public long long in_flight
    cdef public long long losses
    cdef public long long heard_at
    cdef public long long sent_at
    cdef public long long carried_at
    cdef public long long usable
    cdef public long long recent
    cdef public bint wants_probe
    cdef public long long tried
    cdef public long long failed
    cdef public long long penalty
    cdef public long long delivered_packets
    cdef public long long marked_packets
    cdef public long long lost_packets
