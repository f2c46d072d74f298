/**
 * Jobs of ranks as barrier stages of Apache Spark: {@link io.djltp.spark.TensorParallelSpark}
 * starts the processes and tells them of each other; what they then do is any training of this
 * library.
 */
@NullMarked
package io.djltp.spark;

import org.jspecify.annotations.NullMarked;
