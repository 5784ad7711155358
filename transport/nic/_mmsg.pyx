"""Datagrams in batches between buffers and UDP sockets, by sendmmsg, recvmmsg and ppoll.

_mmsg.py is the plain-Python sibling; it has the interface's text.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, ECONNREFUSED, EINTR, ENOBUFS, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

import os
from array import array

cdef extern from "<sys/socket.h>" nogil:
    int AF_INET, AF_INET6, MSG_DONTWAIT, MSG_TRUNC
    ctypedef unsigned int socklen_t
    ctypedef unsigned short sa_family_t
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    cmsghdr *CMSG_FIRSTHDR(msghdr *header)
    cmsghdr *CMSG_NXTHDR(msghdr *header, cmsghdr *cmsg)
    unsigned char *CMSG_DATA(cmsghdr *cmsg)
    size_t CMSG_LEN(size_t length)
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags)
    int recvmmsg(int fd, mmsghdr *messages, unsigned int count, int flags, void *timeout)

cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_IP, IPPROTO_IPV6, IP_TOS, IPV6_TCLASS
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        sa_family_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    struct in6_addr:
        uint8_t s6_addr[16]
    struct sockaddr_in6:
        sa_family_t sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id
    uint16_t htons(uint16_t value)
    uint16_t ntohs(uint16_t value)

cdef extern from "<poll.h>" nogil:
    int POLLIN, POLLOUT
    struct pollfd:
        int fd
        short events
        short revents
    struct timespec:
        long tv_sec
        long tv_nsec
    int ppoll(pollfd *fds, unsigned long count, timespec *timeout, void *mask)

COMPILED = True

cdef enum:
    PARTS = 3  # header, payload, trailer
    CONTROL = 32  # at least CMSG_SPACE(sizeof(int)), a multiple of the alignment of cmsghdr
    REFUSALS = 8

cdef union Name:
    sockaddr_in v4
    sockaddr_in6 v6

cdef struct Entry:
    int path
    int owner
    bint done
    bint has_view
    int parts
    int name_length
    Name name
    iovec iov[PARTS]
    char control[CONTROL]
    Py_buffer view


cdef class Sender:
    cdef readonly int capacity
    cdef readonly int pending
    cdef readonly int stalled
    cdef readonly bytes failed
    cdef int port
    cdef uint32_t scope
    cdef int count
    cdef Entry *entries
    cdef mmsghdr *messages
    cdef int *indexes
    cdef list sockets
    cdef list descriptors
    cdef list families
    cdef list kept

    def __cinit__(self, int capacity, int port, uint32_t scope):
        if capacity < 1 or capacity > 1024:
            raise ValueError("capacity must be from 1 to 1024")
        self.entries = <Entry *>calloc(capacity, sizeof(Entry))
        self.messages = <mmsghdr *>calloc(capacity, sizeof(mmsghdr))
        self.indexes = <int *>calloc(capacity, sizeof(int))
        if self.entries == NULL or self.messages == NULL or self.indexes == NULL:
            raise MemoryError
        self.capacity = capacity
        self.port = port
        self.scope = scope
        self.failed = b""
        self.stalled = -1
        self.sockets = []
        self.descriptors = []
        self.families = []
        self.kept = []

    def __dealloc__(self):
        cdef int i
        if self.entries != NULL:
            for i in range(self.count):
                if self.entries[i].has_view:
                    PyBuffer_Release(&self.entries[i].view)
        free(self.entries)
        free(self.messages)
        free(self.indexes)

    def register(self, sock):
        self.sockets.append(sock)
        self.descriptors.append(sock.fileno())
        self.families.append(4 if sock.family == AF_INET else 16)
        return len(self.sockets) - 1

    def room(self):
        return self.capacity - self.count

    def add(self, int path, bytes address, int tos, int owner, bytes header, payload, bytes trailer):
        cdef Entry *entry
        cdef cmsghdr *cmsg
        cdef unsigned char *raw
        cdef Py_ssize_t size = PyBytes_GET_SIZE(address)
        if self.count >= self.capacity:
            raise IndexError("batch is full")
        if path < 0 or path >= len(self.families):
            raise IndexError("no such socket")
        if <object>self.families[path] != size:
            raise ValueError(f"address {address.hex()} is not of the socket's family")
        entry = &self.entries[self.count]
        entry.has_view = False
        if payload is not None:
            PyObject_GetBuffer(payload, &entry.view, PyBUF_SIMPLE)
            entry.has_view = True
        entry.path = path
        entry.owner = owner
        entry.done = False
        entry.iov[0].iov_base = PyBytes_AS_STRING(header)
        entry.iov[0].iov_len = PyBytes_GET_SIZE(header)
        entry.parts = 1
        if entry.has_view:
            entry.iov[1].iov_base = entry.view.buf
            entry.iov[1].iov_len = entry.view.len
            entry.parts = 2
        entry.iov[entry.parts].iov_base = PyBytes_AS_STRING(trailer)
        entry.iov[entry.parts].iov_len = PyBytes_GET_SIZE(trailer)
        entry.parts += 1
        raw = <unsigned char *>PyBytes_AS_STRING(address)
        cmsg = <cmsghdr *>entry.control
        cmsg.cmsg_len = CMSG_LEN(sizeof(int))
        if size == 4:
            entry.name.v4.sin_family = AF_INET
            entry.name.v4.sin_port = htons(self.port)
            memcpy(&entry.name.v4.sin_addr, raw, 4)
            entry.name_length = sizeof(sockaddr_in)
            cmsg.cmsg_level = IPPROTO_IP
            cmsg.cmsg_type = IP_TOS
        else:
            entry.name.v6.sin6_family = AF_INET6
            entry.name.v6.sin6_port = htons(self.port)
            memcpy(&entry.name.v6.sin6_addr, raw, 16)
            entry.name.v6.sin6_scope_id = self.scope if raw[0] == 0xFE and raw[1] & 0xC0 == 0x80 else 0
            entry.name_length = sizeof(sockaddr_in6)
            cmsg.cmsg_level = IPPROTO_IPV6
            cmsg.cmsg_type = IPV6_TCLASS
        memcpy(CMSG_DATA(cmsg), &tos, sizeof(int))
        self.kept.append(header)
        self.kept.append(trailer)
        self.count += 1
        self.pending += 1

    def send(self):
        cdef int i, j, n, path, error
        self.stalled = -1
        for i in range(self.count):
            if self.entries[i].done:
                continue
            path = self.entries[i].path
            n = 0
            for j in range(i, self.count):
                if not self.entries[j].done and self.entries[j].path == path:
                    self.prepare(n, &self.entries[j])
                    self.indexes[n] = j
                    n += 1
            error = self.send_group(<int>self.descriptors[path], n)
            if error:
                return error
        self.clear()
        return 0

    cdef void prepare(self, int n, Entry *entry) noexcept:
        cdef msghdr *header = &self.messages[n].msg_hdr
        header.msg_name = &entry.name
        header.msg_namelen = entry.name_length
        header.msg_iov = entry.iov
        header.msg_iovlen = entry.parts
        header.msg_control = entry.control
        header.msg_controllen = CMSG_LEN(sizeof(int))
        header.msg_flags = 0

    cdef int send_group(self, int fd, int total) except -1:
        """Send the first `total` prepared messages; 0 or the errno that stopped it."""
        cdef int sent = 0, n, i, error, refused = 0
        cdef Entry *entry
        while sent < total:
            with nogil:
                n = sendmmsg(fd, self.messages + sent, total - sent, MSG_DONTWAIT)
                error = errno
            if n < 0:
                if error == EINTR:
                    PyErr_CheckSignals()
                    continue
                if error == ECONNREFUSED and refused < REFUSALS:
                    refused += 1
                    continue
                if error == EAGAIN or error == ENOBUFS:
                    self.stalled = fd
                entry = &self.entries[self.indexes[sent]]
                if entry.name_length == sizeof(sockaddr_in):
                    self.failed = PyBytes_FromStringAndSize(<char *>&entry.name.v4.sin_addr, 4)
                else:
                    self.failed = PyBytes_FromStringAndSize(<char *>&entry.name.v6.sin6_addr, 16)
                return error
            for i in range(sent, sent + n):
                self.entries[self.indexes[i]].done = True
            self.pending -= n
            sent += n
        return 0

    def settle(self):
        cdef int i, last = -1
        for i in range(self.count):
            if self.entries[i].done and self.entries[i].owner > last:
                last = self.entries[i].owner
        for i in range(self.count):
            if not self.entries[i].done and self.entries[i].owner > last:
                self.entries[i].done = True
                self.pending -= 1
            self.entries[i].owner = -1
        if self.pending == 0:
            self.clear()
        return last

    cpdef clear(self):
        cdef int i, count = self.count
        self.count = 0
        self.pending = 0
        for i in range(count):
            if self.entries[i].has_view:
                self.entries[i].has_view = False
                PyBuffer_Release(&self.entries[i].view)
        self.kept.clear()


cdef struct Slot:
    Name name
    iovec iov
    char control[CONTROL]


cdef class Receiver:
    cdef readonly list sources
    cdef readonly object ports
    cdef readonly object tos
    cdef readonly object lengths
    cdef int[::1] port_view
    cdef int[::1] tos_view
    cdef int[::1] length_view
    cdef unsigned char[::1] buffer
    cdef object sock
    cdef int fd
    cdef int slots
    cdef Slot *slot
    cdef mmsghdr *messages

    def __cinit__(self, sock, buffer, int slots, Py_ssize_t slot_size):
        cdef int i
        cdef msghdr *header
        if slots < 1 or slots > 1024:
            raise ValueError("slots must be from 1 to 1024")
        if slot_size < 1 or len(buffer) < slots * slot_size:
            raise ValueError("buffer is too small")
        self.slot = <Slot *>calloc(slots, sizeof(Slot))
        self.messages = <mmsghdr *>calloc(slots, sizeof(mmsghdr))
        if self.slot == NULL or self.messages == NULL:
            raise MemoryError
        self.sock = sock
        self.fd = sock.fileno()
        self.slots = slots
        self.buffer = buffer
        self.sources = [b""] * slots
        self.ports = array("i", bytes(4 * slots))
        self.tos = array("i", bytes(4 * slots))
        self.lengths = array("i", bytes(4 * slots))
        self.port_view = self.ports
        self.tos_view = self.tos
        self.length_view = self.lengths
        for i in range(slots):
            self.slot[i].iov.iov_base = &self.buffer[i * slot_size]
            self.slot[i].iov.iov_len = slot_size
            header = &self.messages[i].msg_hdr
            header.msg_name = &self.slot[i].name
            header.msg_iov = &self.slot[i].iov
            header.msg_iovlen = 1
            header.msg_control = self.slot[i].control

    def __dealloc__(self):
        free(self.slot)
        free(self.messages)

    def receive(self, int limit):
        cdef int i, n, error
        cdef int count = limit if limit < self.slots else self.slots
        if count <= 0:
            return 0
        for i in range(count):
            self.messages[i].msg_hdr.msg_namelen = sizeof(Name)
            self.messages[i].msg_hdr.msg_controllen = CONTROL
        with nogil:
            n = recvmmsg(self.fd, self.messages, count, MSG_DONTWAIT, NULL)
            error = errno
        if n < 0:
            if error == EINTR:
                PyErr_CheckSignals()
                return 0
            if error == EAGAIN or error == ECONNREFUSED:
                return 0
            raise OSError(error, os.strerror(error))
        for i in range(n):
            self.describe(i)
        return n

    cdef int describe(self, int i) except -1:
        cdef mmsghdr *message = &self.messages[i]
        cdef Slot *slot = &self.slot[i]
        cdef char *address
        cdef Py_ssize_t size
        cdef bytes known = self.sources[i]
        cdef cmsghdr *cmsg
        cdef int tos = 0
        self.length_view[i] = -1 if message.msg_hdr.msg_flags & MSG_TRUNC else <int>message.msg_len
        if slot.name.v4.sin_family == AF_INET:
            address = <char *>&slot.name.v4.sin_addr
            size = 4
            self.port_view[i] = ntohs(slot.name.v4.sin_port)
        else:
            address = <char *>&slot.name.v6.sin6_addr
            size = 16
            self.port_view[i] = ntohs(slot.name.v6.sin6_port)
        if PyBytes_GET_SIZE(known) != size or memcmp(PyBytes_AS_STRING(known), address, size) != 0:
            self.sources[i] = PyBytes_FromStringAndSize(address, size)
        cmsg = CMSG_FIRSTHDR(&message.msg_hdr)
        while cmsg != NULL:
            if (cmsg.cmsg_level == IPPROTO_IP and cmsg.cmsg_type == IP_TOS) or (
                cmsg.cmsg_level == IPPROTO_IPV6 and cmsg.cmsg_type == IPV6_TCLASS
            ):
                # a byte over IPv4, an int over IPv6
                if cmsg.cmsg_len >= CMSG_LEN(sizeof(int)):
                    memcpy(&tos, CMSG_DATA(cmsg), sizeof(int))
                else:
                    tos = CMSG_DATA(cmsg)[0]
            cmsg = CMSG_NXTHDR(&message.msg_hdr, cmsg)
        self.tos_view[i] = tos & 0xFF
        return 0


def wait(int readable, int writable, long long timeout):
    cdef pollfd fds[2]
    cdef timespec limit
    cdef int n, error
    fds[0].fd = readable
    fds[0].events = POLLIN
    fds[0].revents = 0
    fds[1].fd = writable
    fds[1].events = POLLOUT
    fds[1].revents = 0
    limit.tv_sec = timeout // 1000000000 if timeout >= 0 else 0
    limit.tv_nsec = timeout % 1000000000 if timeout >= 0 else 0
    PyErr_CheckSignals()
    with nogil:
        n = ppoll(fds, 2 if writable >= 0 else 1, NULL if timeout < 0 else &limit, NULL)
        error = errno
    if n < 0:
        if error != EINTR:
            raise OSError(error, os.strerror(error))
        PyErr_CheckSignals()
        return False
    return n > 0
