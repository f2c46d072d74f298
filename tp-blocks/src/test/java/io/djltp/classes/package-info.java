/** Contains the tests of classifiers that are trained from files. */
package io.djltp.classes;
