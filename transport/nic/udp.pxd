from transport.packet cimport Packet
from transport.wire cimport Codec

cdef class UdpNic:
    cdef public object family
    cdef public bytes address
    cdef public object scope
    cdef public object text
    cdef public int port_number
    cdef public long long max_run
    cdef public long long max_sockets
    cdef public bint busy_poll
    cdef public list entropies
    cdef public object caps
    cdef public Codec codec
    cdef public Codec unchecked
    cdef public list sockets
    cdef public dict paths
    cdef public dict aliases
    cdef public long long slot_size
    cdef public object arena
    cdef public long long sent
    cdef public long long received
    cdef public long long malformed
    cdef public long long bad_icrc
    cdef public long long truncated
    cdef public bint closed
    cdef public object sender
    cdef public object receiver
    cdef public object socket
    cdef public int fd
    cpdef long long _send(self, packets) except -1
    cpdef object _add(self, Packet packet, long long owner)
    cpdef bint _flush(self) except -1
    cpdef bint _continues(self, Packet run, Packet packet)
