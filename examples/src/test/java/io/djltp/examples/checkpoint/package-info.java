/** Contains the tests of {@code tp checkpoint}. */
package io.djltp.examples.checkpoint;
