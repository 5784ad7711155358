cdef class Work:
    cdef public object wr_id
    cdef public int opcode
    cdef public long long length
    cdef public object data
    cdef public unsigned long long address
    cdef public long long rkey
    cdef public long long imm
    cdef public bint has_imm
    cdef public bint response
    cdef public long long first
    cdef public long long count
    cdef public long long sent
    cdef public long long acked
    cdef public long long began
    cdef public long long number
    cdef public long long waiting
    cdef public bint refused
    cdef public bint done
    cdef public object region
    cdef public object reply
    cdef public object operand
    cdef public object compare
    cdef public object value

cdef class PostedReceive:
    cdef public object wr_id
    cdef public object region
    cdef public long long number
    cdef public int op
    cdef public long long length
    cdef public long long end
    cdef public long long imm
