/** Contains the tests of the tp command. */
package io.djltp.examples;
