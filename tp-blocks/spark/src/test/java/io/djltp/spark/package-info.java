/** Tests of jobs of ranks on Spark, on a cluster of this machine. */
package io.djltp.spark;
