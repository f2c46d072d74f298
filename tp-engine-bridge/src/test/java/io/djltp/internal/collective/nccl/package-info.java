/** Tests the {@code nccl} backend on a double of CUDA and NCCL, which needs no GPU. */
package io.djltp.internal.collective.nccl;
