/** Tests of {@code tp bench}. */
package io.djltp.examples.bench;
