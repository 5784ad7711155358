from transport.icrc cimport pseudo_header
from transport.octets cimport get24, get32, put16, put32
from transport.packet cimport Packet

cdef Py_ssize_t _BTH_AT
cdef Py_ssize_t _BTH
cdef Py_ssize_t _RETH
cdef Py_ssize_t _IMMEDIATE
cdef Py_ssize_t _DETH
cdef Py_ssize_t _ICRC
cdef Py_ssize_t _UDP
cdef Py_ssize_t _CNP_PAYLOAD
cdef Py_ssize_t _UD_DATA
cdef Py_ssize_t _UD_CONTROL
cdef Py_ssize_t _TAG
cdef Py_ssize_t _MAX_PAYLOAD
cdef Py_ssize_t _MAX_UDP
cdef unsigned long long _MASK32
cdef unsigned long long _MASK64
cdef bytes _ZEROS
cdef tuple _PADS

cdef class Codec:
    cdef public int icrc
    cdef public bint ud
    cdef public int data_dscp
    cdef public int control_dscp
    cdef public int hop_limit
    cdef object memory
    cdef object window
    cdef unsigned char[::1] scratch
    cdef object source
    cdef object source_window
    cdef const unsigned char[::1] view
    cpdef long long traffic_class(self, Packet packet)
    cpdef tuple encode(self, Packet packet, long long index)
    cpdef tuple _encode(self, Packet packet, long long index, long long identification)
    cdef object _payload(self, Packet packet, long long index, Py_ssize_t length)
    cdef Py_ssize_t _header(self, Packet packet, long long index, Py_ssize_t length) except -1
    cpdef Packet decode(
        self, object buffer, Py_ssize_t offset, Py_ssize_t length, bytes src, bytes dst, long long entropy,
        long long tos=*, long long identification=*,
    )
    cdef object _attach(self, object buffer)
    cdef object _bounds(self, Py_ssize_t offset, Py_ssize_t length)
    cdef object _check(
        self, Py_ssize_t offset, Py_ssize_t length, bytes src, bytes dst, long long entropy, long long identification
    )
    cdef Packet _decode(
        self, object buffer, Py_ssize_t offset, Py_ssize_t length, bytes src, bytes dst, long long entropy,
        long long tos,
    )
    cdef object _decode_ud(self, Packet packet, object buffer, Py_ssize_t at, Py_ssize_t end)
    cdef object _place(self, Packet packet, object buffer, Py_ssize_t at, Py_ssize_t end)
    cdef object _control(self, Packet packet, long long kind, Py_ssize_t at, Py_ssize_t end)
