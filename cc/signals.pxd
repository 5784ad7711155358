cdef class AckSignal:
    cdef public long long acked_bytes
    cdef public long long acked_packets
    cdef public long long marked_bytes
    cdef public long long marked_packets
    cdef public long long rtt
    cdef public long long min_rtt
    cdef public long long in_flight
    cdef public bint window_limited
    cdef public long long median_rtt
    cdef public long long spread_rtt
    cdef public double marked_fraction
    cdef public list hops

cdef class LossSignal:
    cdef public long long lost_bytes
    cdef public long long lost_packets
    cdef public long long in_flight
    cdef public bint trimmed
    cdef public long long sent_at
