/** An application of Spark: the lemmatiser, trained from a DataFrame. */
@NullMarked
package io.djltp.examples.spark;

import org.jspecify.annotations.NullMarked;
