cimport cython
from transport.packet cimport Packet

cdef class Frame:
    cdef public Packet packet
    cdef public long long size
    cdef public unsigned long long flow
    cdef public long long edge
    cdef public long long slot
    cdef public bint data
    cdef public long long arrives
    cdef public long long tail
    cdef public object ingress
    cdef public Frame following

@cython.final
cdef class Frames:
    cdef public Frame spare
    cdef public long long made
    cpdef Frame take(self)
    cpdef object give(self, Frame frame)

@cython.final
cdef class Queue:
    cdef public Frame first
    cdef public Frame last
    cdef public long long size
    cpdef object push(self, Frame frame)
    cpdef Frame pop(self)
