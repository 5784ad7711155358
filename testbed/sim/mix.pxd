cpdef unsigned long long mix(unsigned long long value) noexcept

cdef class Draws:
    cdef unsigned long long state
    cpdef unsigned long long draw(self) noexcept
