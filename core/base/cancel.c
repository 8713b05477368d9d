// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "cancel.h"

__thread bool pm_cancel_asynchronous __attribute__((tls_model("initial-exec")));
__thread uint32_t pm_inside __attribute__((tls_model("initial-exec")));
__thread bool pm_postponed __attribute__((tls_model("initial-exec")));
