cdef long long NEVER

cdef class Dormant:
    cdef public long long dsn
    cdef public long long csn
    cdef public long long peer_dsn
    cdef public long long peer_csn
    cdef public long long last_sent_at
    cdef public long long next_advert
    cdef public long long next_read
    cdef public object adverts
    cdef public long long acked_at
    cdef public long long seen_duplicates
    cdef public long long reorder_quarters
    cdef public long long head
    cdef public long long advertised
    cdef public object receives
    cdef public long long marked_packets
    cdef public long long marked_bytes
    cdef public long long duplicates
    cdef public long long last_duplicate
