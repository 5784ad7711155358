cdef class Ack:
    cdef public long long edge
    cdef public long long base
    cdef public long long bits
    cdef public bytes received
    cdef public bytes marked
    cdef public long long control_edge
    cdef public bytes control_received
    cdef public int trigger_space
    cdef public long long trigger_seq
    cdef public long long trigger_psn
    cdef public long long trigger_entropy
    cdef public long long hold
    cdef public long long marked_packets
    cdef public long long marked_bytes
    cdef public long long duplicates
    cdef public long long last_duplicate
    cdef public list hops
