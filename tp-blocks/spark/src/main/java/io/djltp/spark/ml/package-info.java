/**
 * A classifier of Spark ML whose classes are cut over the ranks: {@link
 * io.djltp.spark.ml.ParallelClassifier} trains it in a barrier stage, {@link
 * io.djltp.spark.ml.ParallelClassificationModel} finds the best classes of each row.
 */
@NullMarked
package io.djltp.spark.ml;

import org.jspecify.annotations.NullMarked;
