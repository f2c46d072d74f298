/** Contains the mappings of autograd in and out of tensor-parallel regions. */
package io.djltp.internal.region;
