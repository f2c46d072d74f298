/** An application of Spark: the lemmatiser, trained from a DataFrame. */
package io.djltp.examples.spark;
