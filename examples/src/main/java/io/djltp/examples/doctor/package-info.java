/** Contains {@code tp doctor}: what is here, and how fast it is. */
package io.djltp.examples.doctor;
