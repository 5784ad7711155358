from transport.packet cimport Packet
from transport.table cimport Table

cdef class MemoryRegion:
    cdef public ProtectionDomain domain
    cdef public object view
    cdef public unsigned long long address
    cdef public long long length
    cdef public long long access
    cdef public long long owner
    cdef public long long rkey

cdef class ProtectionDomain:
    cdef public Table table
    cdef public object next_address
    cpdef MemoryRegion find(self, long long rkey, unsigned long long address, long long length, long long access, long long owner)

cpdef object place(MemoryRegion region, Packet packet, long long index)
cpdef object place_run(MemoryRegion region, Packet packet)
