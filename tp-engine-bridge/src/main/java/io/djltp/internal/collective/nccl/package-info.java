/** The {@code nccl} backend: ranks with a GPU each, in one process or many. */
@NullMarked
package io.djltp.internal.collective.nccl;

import org.jspecify.annotations.NullMarked;
