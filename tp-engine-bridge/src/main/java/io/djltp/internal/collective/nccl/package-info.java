/** The {@code nccl} backend: ranks with a GPU each, in one process or many. */
package io.djltp.internal.collective.nccl;
