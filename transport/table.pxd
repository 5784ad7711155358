cdef class Table:
    cdef object rng
    cdef long long bits
    cdef long long used
    cdef long long mask
    cdef long long[::1] numbers
    cdef list items
    cpdef object get(self, long long number)
