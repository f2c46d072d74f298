/** Contains the tests of {@code tp train}. */
package io.djltp.examples.train;
