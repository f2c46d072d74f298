/** Contains the {@code tp} command. */
package io.djltp.examples;
