/** Contains what several tests use. */
package io.djltp.testing;
