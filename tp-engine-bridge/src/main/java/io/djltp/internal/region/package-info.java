/** Contains the mappings of autograd in and out of tensor-parallel regions. */
@NullMarked
package io.djltp.internal.region;

import org.jspecify.annotations.NullMarked;
