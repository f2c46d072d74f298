/** Contains how tensors are cut: strategies, and the store that hands each rank its part. */
package io.djltp.sharding;
