/** Jobs of ranks as barrier stages of Apache Spark. */
package io.djltp.spark;
