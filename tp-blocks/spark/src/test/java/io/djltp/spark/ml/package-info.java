/** Tests of the classifier of Spark ML. */
package io.djltp.spark.ml;
