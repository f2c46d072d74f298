/** Contains the tests of {@code tp plan}. */
package io.djltp.examples.plan;
