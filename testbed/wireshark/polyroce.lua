-- Wireshark dissector of what polyroce sends in RoCEv2: docs/wire.md as fields and filters.
--
-- It takes the payloads that Wireshark's infiniband dissector hands over for UC RDMA WRITE ONLY with immediate, UC SEND
-- ONLY with and without immediate, and UD SEND ONLY with polyroce's Q_Key. Nothing in such a packet says that it is
-- polyroce's: in a capture with UC traffic of others, disable the protocol. What the codec would refuse is shown as far
-- as it can be read and marked by `polyroce.malformed`. The ICRC is not checked, and tags are not compared.

local polyroce = Proto("polyroce", "polyroce control")

local UC_WRITE_ONLY_IMMEDIATE = 0x2B
local UC_SEND_ONLY_IMMEDIATE = 0x25
local UC_SEND_ONLY = 0x24
local UD_SEND_ONLY = 0x64
local QKEY = 0x1EE7C0DE

local TAG = 4 -- bytes before the type code
local UD_HEADER = 12
local UD_DATA_HEADER = 24
local INLINE_LIMIT = 256
local CONTROL_BITMAP = 16
local MAX_RANGES = 32 -- of one bitmap that are spelled out

local bth_opcode = Field.new("infiniband.bth.opcode")
local bth_pad = Field.new("infiniband.bth.padcnt")
local immediate = Field.new("infiniband.immdt")
local dma_length = Field.new("infiniband.reth.dmalen")
local q_key = Field.new("infiniband.deth.q_key")

local malformed = ProtoExpert.new(
    "polyroce.malformed", "Malformed polyroce payload", expert.group.MALFORMED, expert.severity.ERROR)
polyroce.experts = { malformed }

local YES_NO = { [0] = "no", [1] = "yes" }
local MESSAGE_OPS = { [0] = "SEND", [1] = "SEND with immediate", [2] = "WRITE with immediate", [3] = "READ response" }
local ATOMIC_OPS = { [0] = "FETCH_ADD", [1] = "CMP_SWAP" }
local REASONS = { [0] = "trimmed", [1] = "out of order" }
local SPACES = { [0] = "data", [1] = "control" }
local TERMINATE_KINDS = { [0] = "message", [1] = "read or atomic", [2] = "connection" }
local STATUSES = {
    [0] = "SUCCESS", [1] = "LOC_LEN_ERR", [2] = "LOC_QP_OP_ERR", [4] = "LOC_PROT_ERR", [5] = "WR_FLUSH_ERR",
    [7] = "BAD_RESP_ERR", [9] = "REM_INV_REQ_ERR", [10] = "REM_ACCESS_ERR", [11] = "REM_OP_ERR",
    [12] = "RETRY_EXC_ERR", [15] = "REM_ABORT_ERR", [18] = "FATAL_ERR",
}

-- Fields of a payload: {offset from the type code, bytes, name, ...}. Without a name the bytes are reserved. values: the
-- only ones allowed; bits: fewer than the place has; hex: how it is shown.
local LAYOUTS = {
    [0x10] = { name = "MSG", size = 28,
        { 1, 1, "op", values = MESSAGE_OPS }, { 2, 1, "is_inline", values = YES_NO }, { 3, 1 }, { 4, 4, "number" },
        { 8, 4, "first" }, { 12, 4, "count" }, { 16, 4, "imm", hex = true }, { 20, 8, "length", bits = 63 } },
    [0x11] = { name = "RECV_ADVERT", size = 8,
        { 1, 1, "count" }, { 2, 2 }, { 4, 4, "number" } },
    [0x12] = { name = "READ_REQ", size = 44,
        { 1, 3 }, { 4, 4, "number" }, { 8, 4, "edge" }, { 12, 4, "rkey", hex = true },
        { 16, 4, "reply_rkey", hex = true }, { 20, 8, "address", hex = true }, { 28, 8, "reply_address", hex = true },
        { 36, 8, "length", bits = 63 } },
    [0x13] = { name = "ATOMIC", size = 40,
        { 1, 1, "op", values = ATOMIC_OPS }, { 2, 2 }, { 4, 4, "number" }, { 8, 4, "edge" },
        { 12, 4, "rkey", hex = true }, { 16, 8, "address", hex = true }, { 24, 8, "operand" }, { 32, 8, "compare" } },
    [0x14] = { name = "ATOMIC_REPLY", size = 16,
        { 1, 3 }, { 4, 4, "number" }, { 8, 8, "value" } },
    [0x15] = { name = "TERMINATE", size = 8,
        { 1, 1, "status", values = STATUSES }, { 2, 1, "kind", values = TERMINATE_KINDS }, { 3, 1 },
        { 4, 4, "number" } },
    [0x16] = { name = "CLOSE", size = 12,
        { 1, 3 }, { 4, 4, "final_dsn" }, { 8, 4, "final_csn" } },
    [0x17] = { name = "RETIRE", size = 8,
        { 1, 1 }, { 2, 2, "path" }, { 4, 4, "qpn", bits = 24, hex = true } },
    [0x18] = { name = "RETIRED", size = 12,
        { 1, 1 }, { 2, 2, "path" }, { 4, 4, "qpn", bits = 24, hex = true },
        { 8, 4, "new_qpn", bits = 24, hex = true } },
    [0x20] = { name = "ACK", size = 52,
        { 1, 1, "trigger_space", values = SPACES }, { 2, 2, "bits" }, { 4, 4, "edge" }, { 8, 4, "base" },
        { 12, 4, "control_edge" }, { 16, 4, "trigger_seq" }, { 20, 4, "trigger_psn", bits = 24 },
        { 24, 2, "trigger_entropy", hex = true }, { 26, 1, "control_bytes" }, { 27, 1 }, { 28, 4, "hold" },
        { 32, 4, "last_duplicate" }, { 36, 4, "duplicates" }, { 40, 4, "marked_packets" },
        { 44, 8, "marked_bytes", bits = 63 } },
    [0x21] = { name = "NACK", size = 12,
        { 1, 1, "reason", values = REASONS }, { 2, 2, "entropy", hex = true }, { 4, 4, "seq" },
        { 8, 4, "psn", bits = 24 } },
    [0x22] = { name = "REJECT", size = 20,
        { 1, 1, "status", values = STATUSES }, { 2, 2 }, { 4, 4, "seq" }, { 8, 4, "rkey", hex = true },
        { 12, 8, "address", hex = true } },
    [0x23] = { name = "PROBE", size = 16,
        { 1, 1 }, { 2, 2, "entropy", hex = true }, { 4, 8, "nonce", hex = true }, { 12, 4 } },
    [0x24] = { name = "PROBE_REPLY", size = 16,
        { 1, 1, "marked", values = YES_NO }, { 2, 2, "entropy", hex = true }, { 4, 8, "nonce", hex = true },
        { 12, 4, "hold" } },
    [0x25] = { name = "DEMAND", size = 28,
        { 1, 3 }, { 4, 8, "total", bits = 63 }, { 12, 8, "unsolicited", bits = 63 }, { 20, 8, "lost", bits = 63 } },
    [0x26] = { name = "CREDIT", size = 12,
        { 1, 3 }, { 4, 8, "total", bits = 63 } },
}
local RECEIVE = { size = 20, -- each of a RECV_ADVERT
    { 0, 4, "rkey", hex = true }, { 4, 8, "address", hex = true }, { 12, 8, "length", bits = 63 } }

local UD_DATA, UD_CONTROL = 0x01, 0x02
local TYPES = { [UD_DATA] = "UD_DATA", [UD_CONTROL] = "UD_CONTROL" }
for code, layout in pairs(LAYOUTS) do
    TYPES[code] = layout.name
end

local fields = {
    tag = ProtoField.uint32("polyroce.tag", "Verification tag", base.HEX),
    kind = ProtoField.uint8("polyroce.type", "Type", base.HEX, TYPES),
    dsn = ProtoField.uint32("polyroce.dsn", "Data sequence number", base.DEC),
    csn = ProtoField.uint32("polyroce.csn", "Control sequence number", base.DEC),
    reserved = ProtoField.bytes("polyroce.reserved", "Reserved"),
    rkey = ProtoField.uint32("polyroce.data.rkey", "rkey", base.HEX),
    address = ProtoField.uint64("polyroce.data.address", "address", base.HEX),
    data = ProtoField.bytes("polyroce.data.payload", "payload"),
    inline = ProtoField.bytes("polyroce.msg.inline", "inline"),
    receive = ProtoField.none("polyroce.recv_advert.receive", "receive"),
    control_received = ProtoField.bytes("polyroce.ack.control_received", "control_received"),
    received = ProtoField.bytes("polyroce.ack.received", "received"),
    marked = ProtoField.bytes("polyroce.ack.marked", "marked"),
    arrived = ProtoField.string("polyroce.ack.arrived", "arrived"),
    congested = ProtoField.string("polyroce.ack.congested", "met congestion"),
    control_arrived = ProtoField.string("polyroce.ack.control_arrived", "control arrived"),
}
local CONSTRUCTORS = { ProtoField.uint8, ProtoField.uint16, nil, ProtoField.uint32, nil, nil, nil, ProtoField.uint64 }

local function declare(layout, prefix)
    for _, item in ipairs(layout) do
        local size, name = item[2], item[3]
        if name then
            local label = name == "hold" and "hold (ns)" or name
            item.field = CONSTRUCTORS[size](prefix .. name, label, item.hex and base.HEX or base.DEC, item.values)
            table.insert(fields, item.field)
        end
    end
end

for _, layout in pairs(LAYOUTS) do
    declare(layout, "polyroce." .. layout.name:lower() .. ".")
end
declare(RECEIVE, "polyroce.recv_advert.")
polyroce.fields = fields

local function complain(tree, text)
    tree:add_proto_expert_info(malformed, text)
end

local function all_zero(range)
    return not range:bytes():tohex():find("[^0]")
end

-- Adds the fields of a layout whose bytes are all there. Returns their values by name.
local function add_layout(layout, body, tree)
    local values = {}
    for _, item in ipairs(layout) do
        local range, name = body(item[1], item[2]), item[3]
        if not name then
            if not all_zero(range) then
                complain(tree:add(fields.reserved, range), "reserved bytes are not 0")
            end
        else
            local shown = tree:add(item.field, range)
            local value = item[2] == 8 and range:uint64() or range:uint()
            values[name] = value
            if item.values and not item.values[value] then
                complain(shown, name .. " has a value without meaning")
            end
            if item.bits == 63 and range(0, 1):uint() >= 0x80 then
                complain(shown, name .. " has more than 63 bits")
            elseif item.bits == 24 and value > 0xFFFFFF then
                complain(shown, name .. " has more than 24 bits")
            end
        end
    end
    return values
end

-- The sequence numbers that a bitmap names, as text: "7 to 9, 12". bits: how many of the bitmap count.
local function ranges(bitmap, first, bits)
    local parts, start = {}, nil
    for i = 0, bits do
        local set = false
        if i < bits then
            local byte = bitmap:get_index(math.floor(i / 8))
            set = math.floor(byte / 2 ^ (i % 8)) % 2 == 1
        end
        if set and not start then
            start = i
        elseif start and not set then
            local low, high = (first + start) % 2 ^ 32, (first + i - 1) % 2 ^ 32
            parts[#parts + 1] = low == high and ("%d"):format(low) or ("%d to %d"):format(low, high)
            start = nil
            if #parts == MAX_RANGES then
                parts[#parts + 1] = "..."
                break
            end
        end
    end
    return #parts > 0 and table.concat(parts, ", ") or "none"
end

-- One of the bitmaps of an ACK, and the same as numbers.
local function add_bitmap(tree, bitmap_field, text_field, range, first, bits)
    if not range then
        return
    end
    tree:add(bitmap_field, range)
    tree:add(text_field, range, ranges(range:bytes(), first, bits)):set_generated()
end

-- Whether bits of the last byte beyond the end of the bitmap are set.
local function overfull(range, bits)
    local used = bits % 8
    return used > 0 and range(range:len() - 1, 1):uint() >= 2 ^ used
end

local function slice(body, at, size)
    return size > 0 and body(at, size) or nil
end

local function add_ack(layout, body, tree)
    local ack = add_layout(layout, body, tree)
    local width = math.floor((ack.bits + 7) / 8)
    if ack.control_bytes > CONTROL_BITMAP then
        complain(tree, "control bitmap of more than 16 bytes")
        return ack
    end
    if body:len() ~= layout.size + ack.control_bytes + 2 * width then
        complain(tree, "length does not fit the bitmaps")
        return ack
    end
    local at = layout.size
    local control = slice(body, at, ack.control_bytes)
    local received = slice(body, at + ack.control_bytes, width)
    local marked = slice(body, at + ack.control_bytes + width, width)
    add_bitmap(tree, fields.control_received, fields.control_arrived, control, ack.control_edge, 8 * ack.control_bytes)
    add_bitmap(tree, fields.received, fields.arrived, received, ack.base, ack.bits)
    add_bitmap(tree, fields.marked, fields.congested, marked, ack.base, ack.bits)
    if width > 0 and (overfull(received, ack.bits) or overfull(marked, ack.bits)) then
        complain(tree, "bits beyond the end of the bitmaps")
    end
    return ack
end

local function add_msg(layout, body, tree)
    local msg = add_layout(layout, body, tree)
    local rest = body:len() - layout.size
    if rest > 0 then
        tree:add(fields.inline, body(layout.size, rest))
    end
    if msg.is_inline == 1 and (msg.length > UInt64(INLINE_LIMIT) or msg.length ~= UInt64(rest)) then
        complain(tree, "an inline message follows whole, and has at most 256 bytes")
    elseif msg.is_inline == 0 and rest > 0 then
        complain(tree, "bytes follow the payload")
    end
    return msg
end

local function add_advert(layout, body, tree)
    local advert = add_layout(layout, body, tree)
    if body:len() ~= layout.size + advert.count * RECEIVE.size then
        complain(tree, "length does not fit the number of receives")
    end
    for at = layout.size, body:len() - RECEIVE.size, RECEIVE.size do
        local range = body(at, RECEIVE.size)
        add_layout(RECEIVE, range:tvb(), tree:add(fields.receive, range))
    end
    return advert
end

local READERS = { [0x10] = add_msg, [0x11] = add_advert, [0x20] = add_ack }

-- A control payload from its type code on, at least that. Returns what the packet list says of it.
local function add_control(body, tree, reliable)
    local code = body(0, 1):uint()
    local layout = LAYOUTS[code]
    local kind = tree:add(fields.kind, body(0, 1))
    if not layout then
        complain(kind, "unknown type code")
        return ("type 0x%02x"):format(code)
    end
    if (code < 0x20) ~= reliable then
        complain(kind, "type code of another kind of packet")
    end
    if body:len() < layout.size then
        complain(tree, ("%s has %d bytes, needs %d"):format(layout.name, body:len(), layout.size))
        return layout.name .. " (cut short)"
    end
    local read = READERS[code]
    local values
    if read then
        values = read(layout, body, tree)
    else
        values = add_layout(layout, body, tree)
        if body:len() > layout.size then
            complain(tree, "bytes follow the payload")
        end
    end
    local words = { layout.name }
    for _, item in ipairs(layout) do
        local name = item[3]
        if name then
            local text = item.values and item.values[values[name]]
            if not text then
                text = item.hex and body(item[1], item[2]):bytes():tohex(true) or tostring(values[name])
            end
            words[#words + 1] = name .. "=" .. text
        end
    end
    return table.concat(words, " ")
end

-- The payload of UD SEND ONLY; its tag has been added.
local function add_ud(payload, tree)
    local code = payload(TAG, 1):uint()
    local needed = code == UD_DATA and UD_DATA_HEADER or UD_HEADER
    if code ~= UD_DATA and code ~= UD_CONTROL then
        return add_control(payload(TAG):tvb(), tree, false)
    end
    tree:add(fields.kind, payload(TAG, 1))
    if payload:len() < needed then
        complain(tree, ("%s has %d bytes, needs %d"):format(TYPES[code], payload:len(), needed))
        return TYPES[code] .. " (cut short)"
    end
    if not all_zero(payload(5, 3)) then
        complain(tree:add(fields.reserved, payload(5, 3)), "reserved bytes are not 0")
    end
    local number, rest = payload(8, 4), payload:len() - needed
    if code == UD_CONTROL then
        tree:add(fields.csn, number)
        local said = ("CSN %d "):format(number:uint())
        if rest == 0 then
            complain(tree, "payload is empty")
            return said .. "empty"
        end
        return said .. add_control(payload(needed):tvb(), tree, true)
    end
    tree:add(fields.dsn, number)
    tree:add(fields.rkey, payload(12, 4))
    tree:add(fields.address, payload(16, 8))
    if rest > 0 then
        tree:add(fields.data, payload(needed))
    end
    return ("DSN %d, %d bytes"):format(number:uint(), rest)
end

-- Data in a WRITE: RETH and immediate are the infiniband dissector's, this names the immediate.
local function add_data(size, tree)
    local number, told = immediate(), dma_length()
    if not number or not told then
        complain(tree, "no RETH and immediate")
        return "data (cut short)"
    end
    tree:add(fields.dsn, number.range)
    if told.value ~= size then
        complain(tree, ("RETH says %d bytes, %d are there"):format(told.value, size))
    end
    return ("DSN %d, %d bytes"):format(number.range:uint(), size)
end

-- A packet that starts with a tag: everything but data over UC.
-- size: without padding.
local function add_tagged(tvb, size, tree, opcode)
    local said = ""
    local number = opcode == UC_SEND_ONLY_IMMEDIATE and immediate()
    if number then
        tree:add(fields.csn, number.range)
        said = ("CSN %d "):format(number.range:uint())
    end
    if size <= TAG then
        complain(tree, "no verification tag and type code")
        return said .. "cut short"
    end
    local payload = tvb(0, size):tvb()
    tree:add(fields.tag, payload(0, TAG))
    if opcode == UD_SEND_ONLY then
        return add_ud(payload, tree)
    end
    return said .. add_control(payload(TAG):tvb(), tree, opcode == UC_SEND_ONLY_IMMEDIATE)
end

local function is_ours(opcode)
    if opcode == UD_SEND_ONLY then
        local key = q_key()
        return key ~= nil and key.range:uint() == QKEY
    end
    return opcode == UC_WRITE_ONLY_IMMEDIATE or opcode == UC_SEND_ONLY_IMMEDIATE or opcode == UC_SEND_ONLY
end

local function dissect(tvb, pinfo, tree)
    local opcode, pad = bth_opcode(), bth_pad()
    if not opcode or not pad or not is_ours(opcode.value) then
        return false
    end
    local size = tvb:len() - pad.value
    local part = tree:add(polyroce, tvb(0, math.max(0, size)))
    local said
    if size < 0 then
        complain(part, "padding is longer than the payload")
        said = "cut short"
    elseif opcode.value == UC_WRITE_ONLY_IMMEDIATE then
        said = add_data(size, part)
    else
        said = add_tagged(tvb, size, part, opcode.value)
    end
    part:append_text(", " .. said)
    pinfo.cols.protocol = "polyroce"
    pinfo.cols.info = said
    return true
end

polyroce:register_heuristic("infiniband.payload", dissect)
