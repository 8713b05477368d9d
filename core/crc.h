// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// CRC-32C, for metadata that is written rarely: table driven, no dependency on the CPU.
#ifndef PM_CRC_H
#define PM_CRC_H

#include <stddef.h>
#include <stdint.h>

// Continues `crc` (0 to start) over `len` bytes.
uint32_t pm_crc32c(uint32_t crc, const void *data, size_t len);

#endif
