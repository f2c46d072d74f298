/** Contains {@code tp train}: the training of the lemmatiser. */
package io.djltp.examples.train;
