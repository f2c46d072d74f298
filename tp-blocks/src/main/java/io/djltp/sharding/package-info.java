/** Contains how tensors are cut: strategies, and the store that hands each rank its part. */
@NullMarked
package io.djltp.sharding;

import org.jspecify.annotations.NullMarked;
