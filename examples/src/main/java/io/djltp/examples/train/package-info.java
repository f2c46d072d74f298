/** Contains {@code tp train}: the training of classifiers and of the lemmatiser. */
@NullMarked
package io.djltp.examples.train;

import org.jspecify.annotations.NullMarked;
