// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Marks a function that the libraries export. preload.map lists the functions of pmalloc.h, too.
#ifndef PM_EXPORT_H
#define PM_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
